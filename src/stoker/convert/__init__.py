"""From one format to another: survey all samples, then write shards with their index, resumable."""

from stoker.convert.job import ConvertReport, convert

__all__ = ["ConvertReport", "convert"]
