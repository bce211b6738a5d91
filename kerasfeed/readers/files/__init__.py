"""Files that each hold many scenes, as one sequence: `FileSequence`."""
