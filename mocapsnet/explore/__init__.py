"""The explorer: a local web page that shows what a capsule network sees."""
