# Two images: `server`, Prefect with its database and Redis drivers, and `longtake`, for workers and commands (CPU or, with the NVIDIA
# container toolkit, GPU: torch's wheel includes CUDA). Neither runs as root. Not built by us yet: there was no container engine.
FROM python:3.11-slim AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --create-home --uid 1000 longtake

FROM base AS server
RUN pip install "prefect>=3.8,<3.9" "fastapi>=0.139,<0.151" "sqlalchemy>=2.0.40,<2.1" "prefect-redis>=0.3,<0.4" "asyncpg>=0.30"
USER longtake
WORKDIR /home/longtake
CMD ["prefect", "server", "start", "--host", "0.0.0.0"]

FROM base AS longtake
WORKDIR /app
COPY pyproject.toml README.md LICENSE longtake.py ./
COPY flows flows
COPY tasks tasks
COPY models models
COPY storage storage
RUN pip install ".[s3]" && mkdir -p /project/workspace && chown -R longtake /project
USER longtake
WORKDIR /project
ENV LONGTAKE_WORKSPACE=/project/workspace
CMD ["longtake", "--help"]
