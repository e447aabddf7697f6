"""Reports: what a run or a comparison looked like."""
