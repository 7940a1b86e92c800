"""The whole system over fakes, every chance drawn from one seed: `world` says what runs, `oracle` what must hold."""
