"""Steps, recognised from acts: the detector, its signs of work, whose update ends a step."""
