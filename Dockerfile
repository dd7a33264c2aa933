# The static binary, the public certificate authorities and nothing else: `docker build -t slotkeeper .`, or
# `scripts/image`, which sets version and revision. Builds on amd64 and arm64, for the machine on which it runs.
# `scripts/release` builds the last stage alone, from binaries that it has.

# `--build-arg RUST=…` replaces it, for example by a mirror's image or a digest.
ARG RUST=rust:1.95-slim-bookworm

# The manifests of the workspace, each with an empty program or library. Cargo refuses a manifest that names a benchmark,
# example or test without a file, so these sections are removed. The fixed date keeps the copy below the same while the
# manifests are the same.
FROM ${RUST} AS manifests
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY crates crates
RUN sed -i '/^\[\[\(bench\|example\|test\)\]\]$/,/^$/d' Cargo.toml crates/*/Cargo.toml \
    && find . -type f ! -name 'Cargo.*' ! -path '*/src/lib.rs' ! -path '*/src/main.rs' -delete \
    && find . -name lib.rs -exec truncate --size 0 {} + \
    && find . -name main.rs -exec sh -c 'echo "fn main() { }" > "$1"' sh {} \; \
    && find . -type d -empty -delete \
    && find . -exec touch --date @0 {} +

FROM ${RUST} AS build
# musl-gcc compiles the C of ring. Debian's mirrors keep one version of a package, so no version is named.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends musl-tools \
    && rm -rf /var/lib/apt/lists/* \
    && target=$(uname -m)-unknown-linux-musl \
    && rustup target add "$target" \
    && printf '[build]\ntarget = "%s"\n' "$target" >> "$CARGO_HOME/config.toml"
ENV TARGET_CC=musl-gcc
WORKDIR /src
# The dependencies have a layer of their own, which is cached until a manifest changes.
COPY --from=manifests /src ./
RUN cargo build --release --locked -p slotkeeper
COPY src src
COPY crates crates
COPY config/slotkeeper.schema.json config/
ARG REVISION=unknown
# Cargo compares times: copied sources that are older than the layer of the dependencies would not be compiled.
RUN find src crates \( -path '*src/main.rs' -o -path '*src/lib.rs' \) -exec touch {} + \
    && BUILD_REVISION="$REVISION" cargo build --release --locked -p slotkeeper \
    && mv target/*-musl/release/slotkeeper /slotkeeper \
    && mkdir /run/slotkeeper

FROM scratch
# For a Consul with a publicly trusted certificate. `consul.tls.ca_file` names a private authority.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
# A new volume takes its owner from the folder on which it is mounted.
COPY --from=build --chown=65532:65532 /run/slotkeeper /run/slotkeeper
COPY --from=build /slotkeeper /slotkeeper
# A number, since `runAsNonRoot` cannot look a name up in an image without /etc/passwd.
USER 65532:65532
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="slotkeeper" \
      org.opencontainers.image.description="Holds slots of Consul semaphores on behalf of the workload beside it" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENTRYPOINT ["/slotkeeper"]
