"""What every stage runs on: the @stage decorator, the Prefect wrapper, runtime options, progress and consoles."""
