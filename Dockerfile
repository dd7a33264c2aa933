# The static binary, the public certificate authorities and nothing else: `docker build -t slotkeeper .`, or
# `scripts/image`, which knows the revision. Builds on amd64 and arm64, for the machine that it is built on.

# Another one, such as a mirror's or a digest, goes in by `--build-arg RUST=…`.
ARG RUST=rust:1.95-slim-bookworm

FROM ${RUST} AS build
# musl-gcc is for the C of ring. Debian's mirrors keep one version of a package, so there is none to name.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends musl-tools \
    && rm -rf /var/lib/apt/lists/* \
    && target=$(uname -m)-unknown-linux-musl \
    && rustup target add "$target" \
    && printf '[build]\ntarget = "%s"\n' "$target" >> "$CARGO_HOME/config.toml"
ENV TARGET_CC=musl-gcc
WORKDIR /src
# The dependencies have a layer of their own, which is kept while they stay as they are. Their program has nothing in it,
# and its manifest no benchmarks, since cargo wants to see those that are named.
COPY Cargo.toml Cargo.lock ./
RUN sed -i '/^\[\[bench\]\]$/,/^$/d' Cargo.toml \
    && mkdir src && echo 'fn main() {}' > src/main.rs && touch src/lib.rs \
    && cargo build --release --locked
COPY src src
ARG REVISION=unknown
# A copy may be older than what was built before it, and cargo would take that for built from it.
RUN touch src/main.rs src/lib.rs \
    && SLOTKEEPER_REVISION="$REVISION" cargo build --release --locked \
    && mv target/*-musl/release/slotkeeper /slotkeeper \
    && mkdir /run/slotkeeper

FROM scratch
# For a Consul behind a publicly trusted certificate; a private one is named by `consul.tls.ca_file`.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
# A new volume takes its owner from the folder over which it is mounted.
COPY --from=build --chown=65532:65532 /run/slotkeeper /run/slotkeeper
COPY --from=build /slotkeeper /slotkeeper
# A number, since `runAsNonRoot` cannot look a name up in an image without /etc/passwd.
USER 65532:65532
ARG REVISION=unknown
LABEL org.opencontainers.image.title="slotkeeper" \
      org.opencontainers.image.description="Holds slots of Consul semaphores on behalf of the workload beside it" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}"
ENTRYPOINT ["/slotkeeper"]
