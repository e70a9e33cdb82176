"""The commands for daily use: train from folders, predict, evaluate, maintain, export."""
