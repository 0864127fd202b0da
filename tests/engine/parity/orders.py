"""What a test tells the observed talker, and where it writes: a folder that an environment variable names."""

VARIABLE = "OBSERVED_TALKER_FOLDER"
# Codes [frames, 16] to speak instead of its own.
FORCED = "forced.npy"
# If there, the end of speech has the best logit at every step.
EAGER = "eager"
# What passed through, one pickle after another.
OBSERVED = "observed.pickle"
