"""The whole system over fakes, every chance drawn from one seed: see `world.py` for what runs, `oracle.py` for what must
hold."""
