"""Tools prove themselves before tasks are made: cases with expected outcomes, checks, code mutants."""
