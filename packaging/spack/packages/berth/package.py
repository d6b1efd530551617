# SPDX-License-Identifier: BSD-3-Clause
# In a clone or an unpacked tarball:
#   spack repo add packaging/spack
#   spack dev-build berth@0.2.0
from spack.package import *

try:  # since Spack 1.0, where compilers are dependencies
    from spack_repo.builtin.build_systems.meson import MesonPackage

    languages = ["c"]
except ImportError:
    languages = []


class Berth(MesonPackage):
    """Start every process of a training job on a cluster in the right place: rank, GPU, cores, NIC and
    rendezvous address, under Slurm, PBS and ssh; with a data-parallel trainer of its own."""

    license("BSD-3-Clause")

    version("0.2.0")

    variant("pmix", default=True, description="MPI and PMIx programs under berth run")
    variant("mpi", default=True, description="The trainer exchanges gradients over Open MPI")
    variant("jpeg", default=True, description="The trainer reads folders of JPEG images")
    variant("cuda", default=False, description="The trainer runs on NVIDIA GPUs, with cuDNN and NCCL")

    for language in languages:
        depends_on(language, type="build")
    depends_on("meson@1.0:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("hwloc@2.3:")
    depends_on("jansson@2.10:")
    depends_on("libsodium@1.0.14:")
    depends_on("zlib-api")
    depends_on("pmix@4.1:", when="+pmix")
    depends_on("openmpi@4:", when="+mpi")
    depends_on("jpeg", when="+jpeg")
    depends_on("cuda@12:", when="+cuda")
    depends_on("cudnn@9:", when="+cuda")
    depends_on("nccl", when="+cuda")

    def meson_args(self):
        feature = "-D{0}={1}".format
        args = [feature(name, "enabled" if "+" + name in self.spec else "disabled") for name in ("pmix", "mpi", "jpeg", "cuda")]
        args += [feature(name, "disabled") for name in ("gloo", "dnnl", "man", "tests")]
        if "+cuda" in self.spec:
            args += ["-Dnccl=enabled", "-Dnccl_dir=" + self.spec["nccl"].prefix, "-Dcudnn_dir=" + self.spec["cudnn"].prefix]
        else:
            args.append("-Dnccl=disabled")
        return args

    def setup_run_environment(self, env):
        env.prepend_path("PYTHONPATH", self.prefix.share.berth.python)
