"""Trainings that are killed and started again, with the stock tools and with this project, and what came of them."""
