# syntax=docker/dockerfile:1
# A static binary in an image with nothing else. `docker build -t slotkeeper .`

FROM rust:1-alpine AS build
# ring and the C library's start files are built with a C compiler.
RUN apk add --no-cache musl-dev
WORKDIR /src
# The dependencies first: they change seldom, and their layer is kept while only our own code changes.
COPY Cargo.toml Cargo.lock ./
RUN mkdir -p src benches \
    && echo 'fn main() {}' | tee src/main.rs benches/life.rs > src/lib.rs \
    && cargo build --release --locked
COPY src src
ARG REVISION=unknown
# The copies above may be older than the stand-ins that were just built.
RUN touch src/main.rs src/lib.rs && SLOTKEEPER_REVISION=$REVISION cargo build --release --locked

FROM scratch
ARG REVISION=unknown
LABEL org.opencontainers.image.title="slotkeeper" \
      org.opencontainers.image.description="Holds slots of Consul semaphores on behalf of the workload beside it" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /src/target/release/slotkeeper /slotkeeper
# A number, since `runAsNonRoot` cannot look a name up in an image without /etc/passwd.
USER 65532:65532
ENTRYPOINT ["/slotkeeper"]
