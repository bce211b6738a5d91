"""The command `kerasfeed`: its arguments, and what each of its subcommands runs."""
