"""What the pipeline costs, beside other engines at the same questions."""
