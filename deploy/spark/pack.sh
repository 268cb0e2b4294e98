#!/usr/bin/env bash
# Packs an environment for Spark's executors: deploy/spark/pack.sh [ARCHIVE [ROTA]]
#
# Unpacked on every executor by `spark-submit --archives ARCHIVE#environment`: `rota pipeline submit` prints the lines. It
# has Rota and all that it imports, but not Spark, which the cluster has, nor a Python: every machine needs the same one
# (3.11, say) as this machine, at the same path. ROTA is what pip installs: this checkout, a wheel, or rota==VERSION.
set -euo pipefail

archive="$(realpath -m "${1:-rota-env.tar.gz}")"
root="$(dirname "$(realpath "$0")")/../.."
rota="${2:-$root}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/environment"
pip=("$work/environment/bin/python" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" install --no-compile --require-hashes --requirement "$root/requirements/executor.lock"
"${pip[@]}" install --no-compile --no-deps "$rota"
"$work/environment/bin/python" -m pip uninstall --quiet --disable-pip-version-check --yes pip
# What spark-submit runs. By another name than the package's, for a program's folder is looked at first.
cp "$work"/environment/lib/python*/site-packages/rota/__main__.py "$work/environment/rota_main.py"
tar --create --directory "$work/environment" --exclude __pycache__ --exclude tests --file - . | gzip --fast >"$archive"
du -h "$archive"
