"""What a line of a plan's text says."""
import re

OP = re.compile(r"\[\d+\] (?:.* = )?(\w+)\(")
PLACE = re.compile(r"  # (\w+) (\w+)(?: ([^ |]+))?")  # the stream, the role, where in the model
TIMES = re.compile(r"\| ms (\S+) (\S+)$")
