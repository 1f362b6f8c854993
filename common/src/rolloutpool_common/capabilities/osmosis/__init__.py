"""The Osmosis wire, version 3.3: `request` is what a controller sends, `response` is what it gets."""
