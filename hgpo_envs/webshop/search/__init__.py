"""WebShop's search engine: Lucene's text analysis and ranking over an inverted index."""
