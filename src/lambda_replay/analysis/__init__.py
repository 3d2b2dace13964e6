"""Scores, statistics, plots and reports for finished and unfinished runs; nothing here trains or imports torch."""
