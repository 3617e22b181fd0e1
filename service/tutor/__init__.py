"""The tutor: every step of self-attention with its numbers, exercises, and grading of work done by hand.

Pure: arrays and text in, arrays and text out, float64 throughout; it knows the mathematics, and neither HTTP nor queue.
"""
