"""Tools prove themselves before tasks are made of them: cases with expected outcomes, checks, code mutants."""
