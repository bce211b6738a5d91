"""`kf.describe`: statistics of fields and scenes, collected by workers and merged."""
