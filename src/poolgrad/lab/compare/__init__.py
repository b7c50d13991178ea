"""Compares ways of downsampling on one data set: the work behind `poolgrad compare`.

| file | content |
|---|---|
| `options.py`, `command.py` | options of a comparison; from the options to a folder of results |
| `tasks.py`, `classify.py`, `run.py` | what a run does: data, protocol, network, training |
| `grid.py`, `processes.py`, `cluster.py`, `progress.py` | execute the runs in processes |
| `store.py`, `results.py`, `files.py` | results: types, folders, tables |
| `statistics.py`, `shifts.py`, `costs.py` | intervals, shifted images, time and memory |
| `sentence.py`, `findings.py`, `terminal.py`, `report.py` | what is said about the results |
| `figures.py`, `pictures.py`, `maps.py` | pictures of the report |

Tests: ``tests/lab/test_compare*.py`` and ``test_report.py``.

Importing this package is quick: PyTorch and Lightning are imported by the modules that need them.
"""
