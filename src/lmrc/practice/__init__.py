"""A model in daily use: taught from folders, asked, looked after and shipped."""
