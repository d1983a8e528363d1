"""How a release is made and checked. `make release` runs `release.build`; the rest are checks and reports."""
