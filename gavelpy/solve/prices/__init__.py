"""The price engine: linear problems of many jobs, by the prices of a few GPU types."""
