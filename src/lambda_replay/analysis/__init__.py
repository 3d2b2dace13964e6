"""Scores, statistics, plots and the report of finished or unfinished runs; nothing here trains or imports torch."""
