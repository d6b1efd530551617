/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of known failures: what a line of the log contains, the cause, the fix, and the source.
 * To add one, add a row here and put the line, as a program printed it, into
 * tests/unit/explain/test_explain.c. A row must not match anything that a healthy program prints:
 * substrings are the words of the failure itself. */
#include "explain/explain.h"

#define GH "https://github.com/"
#define CHILD_CAUSE                                                                                \
	"the program starts processes itself (torch.multiprocessing.spawn), so each rank starts "  \
	"the whole training, and they compete for one port"
#define CHILD_FIX "start the program once per node: berth run --per-node -- python train.py"

const struct explain_row explain_rows[] = {
	/* ---- rendezvous ---- */
	{{"RendezvousTimeoutError"},
	 "not all torchrun agents joined the rendezvous: torchrun was started on one node only, or "
	 "each agent took itself for the host",
	 "start torchrun on every node: berth run --per-node -- torchrun ...; or omit it: berth "
	 "run -- python train.py",
	 GH "pytorch/pytorch/issues/79388"},
	{{"RendezvousConnectionError"},
	 "torchrun found no store at the rendezvous endpoint: its address is wrong or unreachable, "
	 "or is a second NIC that its host does not recognize as its own",
	 "use berth run --per-node, which sets up a static rendezvous; berth check shows which "
	 "address all nodes reach",
	 GH "pytorch/pytorch/issues/73656"},
	{{"failed to send a keep-alive heartbeat to the rendezvous"},
	 "the node that hosts torchrun's rendezvous has failed, and the agents on the other nodes "
	 "do not notice",
	 "use berth run without torchrun: it ends all ranks within --node-timeout (8 s), and "
	 "restarts them with --max-restarts",
	 GH "pytorch/pytorch/issues/76287"},
	{{"The client socket has timed out after", "while trying to connect to"},
	 "MASTER_ADDR cannot be reached from this node, or no process listens there",
	 "run berth check to see which nodes reach each other; berth run chooses an address that "
	 "all nodes reach (--iface, --subnet)",
	 GH "pytorch/pytorch/issues/107021"},
	{{"Number of processes must be defined"},
	 "jax.distributed.initialize() without arguments finds its ranks only under Slurm and Open "
	 "MPI",
	 "call berth.jax.initialize() instead, or jax.distributed.initialize("
	 "cluster_detection_method='mpi4py') with mpi4py installed",
	 GH "jax-ml/jax/blob/main/jax/_src/distributed.py"},
	{{"use_libuv was requested but PyTorch was"},
	 "PyTorch's store uses libuv since version 2.4, and this PyTorch was built without it, as "
	 "Debian 13's python3-torch",
	 "export USE_LIBUV=0, or install PyTorch with pip",
	 GH "pytorch/pytorch/issues/148283"},
	{{"The IPv6 network addresses of", "cannot be retrieved"},
	 "the name in MASTER_ADDR does not resolve on this node",
	 "use a numeric address, as berth run does",
	 GH "hpcaitech/ColossalAI/issues/2841"},
	{{"The server socket has failed to", "Address already in use"},
	 CHILD_CAUSE,
	 CHILD_FIX,
	 "PyTorch 1.13",
	 .in_child = true},
	{{"name: EADDRINUSE"}, CHILD_CAUSE, CHILD_FIX, "PyTorch 2.15", .in_child = true},
	{{"The server socket has failed to", "Address already in use"},
	 "another program uses MASTER_PORT: a second job on the node, or a leftover process",
	 "let berth run reserve a free port; set --port only if a specific port is required",
	 GH "pytorch/pytorch/issues/116974"},
	{{"name: EADDRINUSE"},
	 "another program uses MASTER_PORT: a second job on the node, or a leftover process",
	 "use berth run, which reserves a free port for each job; run ss -ltnp on the node to find "
	 "the program",
	 "PyTorch 2.15"},
	{{"ConnectionRefusedError: [Errno 111]"},
	 "no process listens at the address: its rank has not started, has failed, or listens on "
	 "another NIC",
	 "look for the first rank that failed; run berth check to see which addresses the nodes "
	 "reach",
	 "connect(2), ECONNREFUSED"},
	{{"is setting up NCCL communicator and retrieving ncclUniqueId from", "Timeout"},
	 "rank 0 was late for the first collective (a slow import or file system), or cannot be "
	 "reached",
	 "check what rank 0 does at startup; copy the Python environment to local disks; set a "
	 "longer timeout in init_process_group",
	 GH "pytorch/pytorch/issues/107177"},
	/* ---- NCCL: interfaces ---- */
	{{"Bootstrap : no socket interface found"},
	 "NCCL_SOCKET_IFNAME names an interface that this node lacks",
	 "unset it: berth run sets it for each node from the subnet",
	 GH "NVIDIA/nccl/issues/286"},
	{{"ncclSocketInit: connecting to address", "is neither AF_INET"},
	 "NCCL found no usable interface: NCCL_SOCKET_IFNAME matches none, or this NCCL does not "
	 "support its '=' form",
	 "unset it: berth run sets it for each node",
	 GH "NVIDIA/nccl/issues/1837"},
	{{"NCCL WARN Error: network", "not found"},
	 "NCCL_NET names a network whose plugin was not found",
	 "load the module that provides the plugin (libnccl-net.so in LD_LIBRARY_PATH), or unset "
	 "NCCL_NET and NCCL_NET_PLUGIN",
	 "https://docs.cscs.ch/software/communication/nccl"},
	{{"Call to ibv_modify_qp failed", "Connection timed out"},
	 "InfiniBand or RoCE ports that cannot reach each other: a wrong GID, a rail-only fabric, "
	 "or a management HCA among them",
	 "set NCCL_IB_HCA to the fabric's ports only (berth info shows them); for RoCE set "
	 "NCCL_IB_GID_INDEX; for a rail-only fabric NCCL_CROSS_NIC=0",
	 GH "NVIDIA/nccl/issues/426"},
	{{"NET/IB : Got completion", "with error 12"},
	 "a packet was never acknowledged over InfiniBand or RoCE: a bad cable or port, a wrong "
	 "GID, or the other rank has ended",
	 "look for a rank that ended first; then run berth check, which measures each link",
	 GH "NVIDIA/nccl/issues/2013"},
	{{"NET/IB", "Got completion from peer", "status=12"},
	 "a packet was never acknowledged over InfiniBand or RoCE: a bad cable or port, a wrong "
	 "GID, or the other rank has ended",
	 "look for a rank that ended first; then run berth check, which measures each link",
	 GH "NVIDIA/nccl/issues/1814"},
	{{"Call to ibv_reg_mr", "Cannot allocate memory"},
	 "the limit on locked memory is too low (ulimit -l); a job inherits it from slurmd or "
	 "pbs_mom, not from the login shell",
	 "ask an administrator for unlimited memlock on the nodes; berth check shows the limit in "
	 "the job",
	 GH "NVIDIA/nccl-tests/issues/206"},
	{{"Cassini Event Queue overflow"},
	 "Slingshot's event queue was too small for the traffic, or the memory monitor is memhooks",
	 "set FI_CXI_DEFAULT_CQ_SIZE=131072 and FI_MR_CACHE_MONITOR=userfaultfd, as berth's "
	 "profile does",
	 GH "olcf/olcf-user-docs/pull/947"},
	{{"No VNIs available in internal allocator"},
	 "PALS has no virtual network identifiers (VNIs) left on this machine",
	 "run mpiexec --no-vni",
	 "https://docs.alcf.anl.gov/aurora/known-issues/"},
	/* ---- GPUs ---- */
	{{"failed to open CUDA IPC handle", "peer access is not supported"},
	 "each task sees only its own GPU (Slurm's --gpus-per-task, --gpu-bind), so GPUs cannot "
	 "access each other's memory",
	 "use --gpus-per-node=N --gpu-bind=none; berth run starts the ranks so that each sees all "
	 "GPUs",
	 GH "NVIDIA/nccl/issues/1066"},
	{{"cuIpcOpenMemHandle", "invalid argument"},
	 "each task sees only its own GPU (Slurm's --gpus-per-task), so GPUs cannot access each "
	 "other's memory",
	 "use --gpus-per-node=N --gpu-bind=none; berth run starts the ranks so that each sees all "
	 "GPUs",
	 GH "open-mpi/ompi/issues/11949"},
	{{"NCCL WARN Duplicate GPU detected"},
	 "two ranks use the same GPU: the local rank is wrong, or two launchers are nested",
	 "use cuda:LOCAL_RANK in the program; put no torchrun or srun between berth run and it",
	 GH "NVIDIA/Megatron-LM/issues/661"},
	{{"invalid literal for int() with base 10: 'GPU-"},
	 "CUDA_VISIBLE_DEVICES holds UUIDs (PBS's cgroup hook, Slurm's env_uuid), but the program "
	 "expects numbers",
	 "use berth run, which sets numbers instead, or a newer version of the program's library",
	 GH "deepspeedai/DeepSpeed/issues/5278"},
	{{"invalid literal for int() with base 10: 'MIG-"},
	 "CUDA_VISIBLE_DEVICES holds the UUIDs of MIG slices, but the program expects numbers",
	 "use a newer version of the program's library, and one rank per slice",
	 GH "vllm-project/vllm/issues/41848"},
	{{"no CUDA-capable device"},
	 "no GPU is visible here: none was requested, or CUDA_VISIBLE_DEVICES comes from another "
	 "node",
	 "request GPUs from the scheduler (#SBATCH --gpus-per-node=4 --cpus-per-gpu=8, "
	 "select=2:ncpus=32:ngpus=4); do not forward CUDA_VISIBLE_DEVICES between nodes",
	 GH "openpbs/openpbs"},
	{{"Error 802: system not yet initialized"},
	 "the GPUs' fabric manager does not run on this node, or its version differs from the "
	 "driver's",
	 "tell the administrators (nvidia-fabricmanager), and exclude the node (--exclude)",
	 GH "pytorch/pytorch/issues/35710"},
	{{"CUDA out of memory"},
	 "the GPU's memory is full",
	 "use a smaller batch (and more gradient accumulation), or check whether another process "
	 "uses the GPU",
	 GH "pytorch/pytorch"},
	{{"unable to open shared memory object", "Too many open files"},
	 "data loader workers share tensors through open files, and the limit on open files is "
	 "reached",
	 "raise ulimit -n, use fewer workers, or call "
	 "torch.multiprocessing.set_sharing_strategy('file_system')",
	 GH "pytorch/pytorch"},
	{{"DataLoader worker", "is killed by signal: Bus error"},
	 "/dev/shm is full or too small: the default in containers is 64 MB",
	 "enlarge it (docker --shm-size; Apptainer uses the host's), or use fewer workers",
	 GH "pytorch/pytorch"},
	{{"Watchdog caught collective operation timeout"},
	 "not all ranks joined an NCCL collective in time: one hangs, has ended, or takes another "
	 "path through the program",
	 "look for the rank that logged least; berth run --hang-timeout names it and prints its "
	 "stacks; berth check measures the network",
	 GH "pytorch/pytorch/issues/118369"},
	{{"NCCL WARN socketProgress: Connection closed by remote peer"},
	 "another rank's process ended, or its node failed; this line is only the consequence on "
	 "the other ranks",
	 "look at the rank that ended first (berth run names it), not at this one",
	 GH "NVIDIA/nccl/issues/1486"},
	{{"gloo/transport/tcp/pair", "Connection closed by peer"},
	 "another rank ended or crashed while this one exchanged data with it",
	 "look for the first rank that failed: berth run names it in its last line",
	 "PyTorch 2.15, gloo"},
	{{"Expected to have finished reduction in the prior iteration"},
	 "some parameters of the model took no part in the loss, so DistributedDataParallel waits "
	 "for their gradients",
	 "remove the unused parameters, or pass find_unused_parameters=True",
	 "PyTorch 2.15, torch.nn.parallel.DistributedDataParallel"},
	{{"CUDA error: device-side assert triggered"},
	 "a CUDA kernel found an invalid value, often a label or an index that is out of range",
	 "check labels against the number of classes; run once with CUDA_LAUNCH_BLOCKING=1 to see "
	 "the operation",
	 "https://docs.pytorch.org/docs/stable/notes/cuda.html"},
	{{"libcudnn", "cannot open shared object file"},
	 "cuDNN is not installed, or not where the loader looks",
	 "load the module or install the package with cuDNN, or set LD_LIBRARY_PATH to its "
	 "directory",
	 "ld.so(8)"},
	{{"CUDA error: an illegal memory access was encountered"},
	 "a kernel read or wrote outside of its memory; the stack trace may show a later call than "
	 "the faulty one",
	 "run it once with CUDA_LAUNCH_BLOCKING=1 (berth run --env), or under compute-sanitizer; "
	 "if it fails on one node only, exclude that node",
	 GH "pytorch/pytorch/issues/34220"},
	/* ---- memory, shared memory, files ---- */
	{{"failed to extend /dev/shm/nccl-", "No space left on device"},
	 "/dev/shm is full: a container's default of 64 MB, or files left by killed jobs",
	 "remove /dev/shm/nccl-* of processes that have ended; give the container a larger "
	 "/dev/shm; berth check examines it",
	 GH "NVIDIA/nccl/issues/290"},
	{{"[Errno 28] No space left on device"},
	 "a file system is full: that of the checkpoints, /tmp or /dev/shm",
	 "run df and df -i on the directory in the lines above; keep fewer checkpoints, or use "
	 "another directory (TMPDIR for temporary files)",
	 GH "databrickslabs/dolly/issues/139"},
	{{"[Errno 122] Disk quota exceeded"},
	 "your quota on that file system is used up, although the file system has space",
	 "run quota -s, or the site's own tool (lfs quota); keep fewer checkpoints, or write to "
	 "scratch",
	 GH "open-mmlab/mmdetection/issues/12069"},
	{{"No space left on device", "checkpoint"},
	 "the file system of the checkpoints is full: the new checkpoint could not be written, "
	 "earlier ones are intact",
	 "run df -h on the directory; remove older checkpoints there and set --keep 2, or use "
	 "another directory with --ckpt (and pass the newest checkpoint to --resume)",
	 "berth-train(1)"},
	{{"Disk quota exceeded", "checkpoint"},
	 "your quota on the file system of the checkpoints is used up: the new checkpoint could "
	 "not be written, earlier ones are intact",
	 "run quota -s, or the site's own tool (lfs quota); remove older checkpoints and set "
	 "--keep 2, or use another directory with --ckpt",
	 "berth-train(1)"},
	{{"No space left on device"},
	 "a file system is full",
	 "run df -h and df -i on the file or directory in this line; remove unneeded files, or use "
	 "another directory",
	 "errno(3), ENOSPC"},
	{{"oom-kill", "Detected", "event"},
	 "the job used more memory than it requested, and the kernel killed a process",
	 "request more memory (#SBATCH --mem, select=...:mem=), or use fewer data loader workers "
	 "or fewer ranks per node",
	 "slurmstepd"},
	{{"oom_kill", "Detected", "event"},
	 "the job used more memory than it requested, and the kernel killed a process",
	 "request more memory (#SBATCH --mem, select=...:mem=), or use fewer data loader workers "
	 "or fewer ranks per node",
	 "slurmstepd"},
	{{"AF_UNIX path too long"},
	 "TMPDIR is too long for a socket's path",
	 "set TMPDIR=/tmp",
	 "https://docs.alcf.anl.gov/aurora/known-issues/"},
	/* ---- MPI and launchers ---- */
	{{"The application appears to have been direct launched using \"srun\""},
	 "Open MPI was built without the PMI that srun offers here, so each process would be its "
	 "own MPI_COMM_WORLD",
	 "use berth run -- PROGRAM, which is a PMIx server itself, or srun --mpi=pmix",
	 GH "open-mpi/ompi/issues/10286"},
	{{"ping RPC timeout"},
	 "PALS received no answer from a node in time",
	 "set PALS_PING_PERIOD=240 PALS_RPC_TIMEOUT=240; if the same node fails again, exclude it",
	 "https://docs.alcf.anl.gov/aurora/known-issues/"},
	{{"Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"},
	 "torchrun gives each rank one thread, which is slow if ranks compute on CPU cores",
	 "set OMP_NUM_THREADS to the number of the rank's cores, as berth run does",
	 GH "pytorch/pytorch/blob/main/torch/distributed/run.py"},
	{{"You set `--ntasks="},
	 "Lightning rejects Slurm's --ntasks",
	 "use --ntasks-per-node, or berth run -- python train.py in a job with --nodes and "
	 "--gpus-per-node",
	 GH "Lightning-AI/pytorch-lightning"},
	/* ---- ended by the scheduler ---- */
	{{"CANCELLED AT", "DUE TO TIME LIMIT"},
	 "the job reached its time limit",
	 "request more time (#SBATCH --time), or save, requeue and resume: berth run --requeue, "
	 "berth train --ckpt",
	 "slurmstepd"},
	{{"CANCELLED AT", "DUE TO PREEMPTION"},
	 "a job with higher priority took the nodes",
	 "use berth run --requeue and berth train --ckpt",
	 "slurmstepd"},
	{{"CANCELLED AT", "DUE TO NODE FAILURE"},
	 "a node of the job failed",
	 "submit the job with --no-kill and use berth run --max-restarts, or use --requeue",
	 "slurmstepd"},
	{{"CANCELLED AT", "DUE TO JOB REQUEUE"},
	 "the job was requeued; tasks that exit with code 1 at that moment are not at fault",
	 "nothing to do: the job starts again",
	 GH "facebookincubator/submitit/issues/1708"},
	{{"=>> PBS: job killed: walltime"},
	 "the job reached its time limit",
	 "request more time (-l walltime), or save, requeue and resume: berth run --requeue, berth "
	 "train --ckpt",
	 "OpenPBS 23.06"},
	{{"=>> PBS: job killed: mem"},
	 "the job used more memory than it requested",
	 "request more memory (select=...:mem=)",
	 "OpenPBS"},
	/* ---- containers ---- */
	{{"FATAL:", "executable file not found in $PATH"},
	 "the image has no such program in its PATH, which is not the host's",
	 "name a program of the image, or its path there; --bind /PATH shows one of the host",
	 "Apptainer 1.4.5"},
	{{"FATAL:", "could not open image"},
	 "this node does not see the image",
	 "put the image on a file system that all nodes share",
	 "Apptainer 1.4.5"},
	{{"FATAL:", "container creation failed"},
	 "the runtime could not make a container of the image on this node",
	 "try apptainer exec IMAGE true on that node, without berth",
	 "Apptainer 1.4.5"},
	{{"Received Signals.SIGTERM death signal"},
	 "the scheduler sent torchrun SIGTERM: the time limit was reached, or the job was "
	 "preempted or cancelled",
	 "use berth run --warn-before 120s --warn-signal USR1 to give the program time to save; "
	 "--requeue continues the job",
	 GH "pytorch/pytorch"},
};
const size_t explain_row_count = sizeof explain_rows / sizeof *explain_rows;
