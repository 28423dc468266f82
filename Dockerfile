# A small image with the program `lockstep`, run by an ordinary user:
#
#   docker build -t lockstep --build-arg COMMIT="$(git rev-parse HEAD)" .
#   docker run --rm lockstep demo
#   docker run --rm -v "$PWD:/work" -u "$(id -u):$(id -g)" lockstep train run.toml --out runs/first
#
# The build does not see .git: COMMIT is what `lockstep --version` and the records of runs name.
# Rewards that are Python functions or programs need what runs them: build an image FROM this one.

# Debian bookworm has glibc 2.36, as the image that runs it.
FROM rust:1.95.0-slim-bookworm AS build
WORKDIR /build
COPY . .
ARG COMMIT=""
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/build/target \
    LOCKSTEP_BUILD_COMMIT="$COMMIT" cargo build --release --locked -p lockstep-cli --features nats \
    && cp target/release/lockstep /lockstep

FROM debian:bookworm-slim
# Certificates for models of the Hub, without a version: Debian removes old ones. The reward `code` isolates programs with
# landlock here: most containers forbid the namespaces that bubblewrap needs.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 lockstep \
    && install -d -m 0777 /work
COPY --from=build /lockstep /usr/local/bin/lockstep
COPY LICENSE-MIT LICENSE-APACHE /usr/local/share/doc/lockstep/
USER 10001:10001
WORKDIR /work
# Models and data of the Hub: a mounted folder keeps them, whoever the user is.
ENV HF_HOME=/work/.cache/huggingface
ENTRYPOINT ["lockstep"]
CMD ["--help"]
