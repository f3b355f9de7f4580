# Longtake on the CPU or, with the NVIDIA container toolkit, on a GPU (torch's wheel carries CUDA). Not built or run by us yet.
FROM python:3.11-slim
RUN useradd --create-home longtake
WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY flows flows
COPY tasks tasks
COPY models models
COPY storage storage
RUN pip install --no-cache-dir .
USER longtake
WORKDIR /project
ENV LONGTAKE_WORKSPACE=/project/workspace
ENTRYPOINT ["longtake"]
CMD ["--help"]
