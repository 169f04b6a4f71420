"""Speed and memory, as ratios against a floor in the same run; nothing here asserts a time."""
