// what the extension includes
