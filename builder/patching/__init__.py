"""The series: ordered patches, each with a header that says why, for what and how it is proven; applied whole."""
