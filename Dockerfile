# lmrc serve on a CPU, as a user without rights; the root file system may be read-only.
# How to build and run it: docs/deploy.md
FROM python:3.12-slim AS build
ARG PIP_EXTRA_INDEX_URL=""
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN python -m venv /opt/lmrc \
    && /opt/lmrc/bin/pip install --no-cache-dir -c constraints.txt '.[serve,onnx]'

FROM python:3.12-slim
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent lmrc \
    && install --directory --owner lmrc /models
COPY --from=build /opt/lmrc /opt/lmrc
ENV PATH=/opt/lmrc/bin:$PATH \
    LMRC_CACHE=/tmp/lmrc \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /models
VOLUME /models
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["lmrc", "serve"]
CMD ["/models/model.lmrc", "--host", "0.0.0.0"]
