#!/usr/bin/env bash
# Packs an environment for Spark's executors: deploy/spark/pack.sh [ARCHIVE [ROTA]]
#
# `spark-submit --archives ARCHIVE#environment` unpacks it on every executor: `rota pipeline submit` prints the command. It
# has Rota and its dependencies, but not Spark, which the cluster has, or Python: every machine needs the same version
# (such as 3.11) at the same path as this machine. ROTA is pip's argument: this checkout, a wheel, or rota==VERSION.
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
# The program for spark-submit. Its name differs from the package's, because Python searches a program's folder first.
cp "$work"/environment/lib/python*/site-packages/rota/__main__.py "$work/environment/rota_main.py"
tar --create --directory "$work/environment" --exclude __pycache__ --exclude tests --file - . | gzip --fast >"$archive"
du -h "$archive"
