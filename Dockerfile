# Debian 12 with all that the scripts install: for work in a container (.devcontainer) and for builds elsewhere.
#   docker build -t diffattn . && docker run --rm -it -v "$PWD":/workspaces/diffattn diffattn scripts/demo.sh
FROM debian:12
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git python3 python3-venv sudo
COPY scripts/setup.sh scripts/setup-packages.sh /opt/diffattn/scripts/
RUN /opt/diffattn/scripts/setup-packages.sh && apt-get clean && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --shell /bin/bash developer && echo 'developer ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/developer
USER developer
WORKDIR /workspaces/diffattn
