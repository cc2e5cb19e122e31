"""The search engine of WebShop: Lucene's analysis and ranking over an inverted index."""
