"""Training runs: what Lightning calls around each step, what a run writes, and how it is resumed.

Read the main files in this order:

    run.py            a run's folder, its files, and the checkpoint to open or to resume
    command_line.py   the options of train.py, filled in and checked; configs.py parses them
    starting.py       the run's folder is created and locked
    end_of_step.py    what happens around each step, and in which order
    stop_signals.py   how a signal stops a run
    code.py           the code of a run, and what has changed since
    saving.py         checkpoints, and what --resume does
    metrics.py        training metrics, and the logger of metrics.csv and of Weights & Biases
    recorder.py       attention maps and samples recorded while the model trains
    records.py        reads and writes the files that grow with the steps
    progress.py       lines on the terminal
    results.py        writes the run's page
"""
