#!/usr/bin/env bash
# Packs an environment for Spark's executors: deploy/spark/pack.sh [ARCHIVE [ROTA]]
#
# Unpacked on every executor by `spark-submit --archives ARCHIVE#environment`. It has all that the data source and the
# tasks import, but not Spark, which the executors have, nor a Python: they need the same one (3.11, say) as this machine,
# at the same path. ROTA is what pip installs: this checkout, a wheel, or rota==VERSION.
set -euo pipefail

archive="$(realpath -m "${1:-rota-env.tar.gz}")"
rota="${2:-$(dirname "$(realpath "$0")")/../..}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/environment"
"$work/environment/bin/python" -m pip install --quiet --disable-pip-version-check "$rota[executor]"
"$work/environment/bin/python" -m pip uninstall --quiet --disable-pip-version-check --yes pip
tar --create --directory "$work/environment" --exclude __pycache__ --file - . | gzip --fast >"$archive"
du -h "$archive"
