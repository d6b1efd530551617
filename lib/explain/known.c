/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of known failures: what a line of the log contains, the cause, the fix, and the source.
 * To add one, add a row here and put the line, as a program printed it, into
 * tests/unit/explain/test_explain.c. A row must not match anything that a healthy program prints:
 * substrings are the words of the failure itself. */
#include "explain/explain.h"

#define GH "https://github.com/"

const struct explain_row explain_rows[] = {
	/* ---- rendezvous ---- */
	{{"RendezvousTimeoutError"},
	 "torchrun's agents did not all come to one meeting point: started on one node only, or "
	 "each took itself for the host",
	 "start it on every node: berth run --per-node -- torchrun ...; or leave torchrun away: "
	 "berth run -- python train.py",
	 GH "pytorch/pytorch/issues/79388"},
	{{"RendezvousConnectionError"},
	 "torchrun found no store at the meeting point: its address is wrong, cannot be reached, "
	 "or is a second NIC that its host does not take for its own",
	 "berth run --per-node gives each node its place by static rendezvous; berth check shows "
	 "which address all nodes reach",
	 GH "pytorch/pytorch/issues/73656"},
	{{"failed to send a keep-alive heartbeat to the rendezvous"},
	 "the node that hosts torchrun's meeting point is gone, and the agents of the others do "
	 "not notice",
	 "berth run without torchrun ends all within --node-timeout (8 s), and starts again with "
	 "--max-restarts",
	 GH "pytorch/pytorch/issues/76287"},
	{{"The client socket has timed out after", "while trying to connect to"},
	 "MASTER_ADDR cannot be reached from this node, or nobody listens there",
	 "berth check shows who reaches whom; berth run chooses an address that all nodes reach "
	 "(--iface, --subnet)",
	 GH "pytorch/pytorch/issues/107021"},
	{{"The IPv6 network addresses of", "cannot be retrieved"},
	 "the name in MASTER_ADDR is not known on this node",
	 "use a numeric address, as berth run does",
	 GH "hpcaitech/ColossalAI/issues/2841"},
	{{"The server socket has failed to", "Address already in use"},
	 "another program has MASTER_PORT: a second job on the node, or one that was left over",
	 "berth run takes a free port and holds it; give --port only where it must be a certain "
	 "one",
	 GH "pytorch/pytorch/issues/116974"},
	{{"is setting up NCCL communicator and retrieving ncclUniqueId from", "Timeout"},
	 "rank 0 came late to the first collective (a slow import or file system), or cannot be "
	 "reached",
	 "look at what rank 0 does at its start; stage the Python environment on local disks; a "
	 "longer timeout in init_process_group",
	 GH "pytorch/pytorch/issues/107177"},
	/* ---- NCCL: interfaces ---- */
	{{"Bootstrap : no socket interface found"},
	 "NCCL_SOCKET_IFNAME names an interface that this node lacks",
	 "unset it: berth run sets it for each node from the subnet",
	 GH "NVIDIA/nccl/issues/286"},
	{{"ncclSocketInit: connecting to address", "is neither AF_INET"},
	 "NCCL found no usable interface: NCCL_SOCKET_IFNAME fits none, or its '=' form is not "
	 "understood by this NCCL",
	 "unset it: berth run sets it for each node",
	 GH "NVIDIA/nccl/issues/1837"},
	{{"NCCL WARN Error: network", "not found"},
	 "NCCL_NET names a network whose plugin was not found",
	 "load the module that brings the plugin (libnccl-net.so in LD_LIBRARY_PATH), or unset "
	 "NCCL_NET and NCCL_NET_PLUGIN",
	 "https://docs.cscs.ch/software/communication/nccl"},
	{{"Call to ibv_modify_qp failed", "Connection timed out"},
	 "InfiniBand or RoCE ports that cannot reach each other: a wrong GID, a rail-only fabric, "
	 "or a management HCA among them",
	 "NCCL_IB_HCA with the fabric's ports alone (berth info shows them); RoCE: "
	 "NCCL_IB_GID_INDEX; rail-only: NCCL_CROSS_NIC=0",
	 GH "NVIDIA/nccl/issues/426"},
	{{"NET/IB : Got completion", "with error 12"},
	 "a packet was never answered over InfiniBand or RoCE: a bad cable or port, a wrong GID, "
	 "or the other rank is gone",
	 "look for a rank that ended first; then berth check, which measures each link",
	 GH "NVIDIA/nccl/issues/2013"},
	{{"Call to ibv_reg_mr", "Cannot allocate memory"},
	 "not enough memory may be locked (ulimit -l): the limit is that of slurmd or pbs_mom, not "
	 "of the login",
	 "ask for memlock unlimited on the nodes; berth check shows the limit in the job",
	 GH "NVIDIA/nccl-tests/issues/206"},
	{{"Cassini Event Queue overflow"},
	 "Slingshot's event queue was too small for the traffic, or memory is watched by memhooks",
	 "FI_CXI_DEFAULT_CQ_SIZE=131072 and FI_MR_CACHE_MONITOR=userfaultfd, as berth's profile "
	 "sets them",
	 GH "olcf/olcf-user-docs/pull/947"},
	{{"No VNIs available in internal allocator"},
	 "PALS has no network identifiers left on this machine",
	 "mpiexec --no-vni",
	 "https://docs.alcf.anl.gov/aurora/known-issues/"},
	/* ---- GPUs ---- */
	{{"failed to open CUDA IPC handle", "peer access is not supported"},
	 "each task sees its own GPU only (Slurm's --gpus-per-task, --gpu-bind): GPUs cannot reach "
	 "each other's memory",
	 "--gpus-per-node=N --gpu-bind=none; berth run starts the ranks so that each sees all",
	 GH "NVIDIA/nccl/issues/1066"},
	{{"cuIpcOpenMemHandle", "invalid argument"},
	 "each task sees its own GPU only (Slurm's --gpus-per-task): GPUs cannot reach each "
	 "other's memory",
	 "--gpus-per-node=N --gpu-bind=none; berth run starts the ranks so that each sees all",
	 GH "open-mpi/ompi/issues/11949"},
	{{"NCCL WARN Duplicate GPU detected"},
	 "two ranks took the same GPU: the local rank is wrong, or two launchers are nested",
	 "cuda:LOCAL_RANK in the program; no torchrun or srun between berth run and it",
	 GH "NVIDIA/Megatron-LM/issues/661"},
	{{"invalid literal for int() with base 10: 'GPU-"},
	 "CUDA_VISIBLE_DEVICES holds UUIDs (PBS's cgroup hook, Slurm's env_uuid), and the program "
	 "wants numbers",
	 "berth run gives ordinals of this node; or a newer version of the program's library",
	 GH "deepspeedai/DeepSpeed/issues/5278"},
	{{"invalid literal for int() with base 10: 'MIG-"},
	 "CUDA_VISIBLE_DEVICES holds the UUIDs of MIG slices, and the program wants numbers",
	 "a newer version of the program's library; a rank a slice",
	 GH "vllm-project/vllm/issues/41848"},
	{{"no CUDA-capable device"},
	 "no GPU is visible here: none was asked for, or CUDA_VISIBLE_DEVICES is another node's",
	 "ask the scheduler for GPUs (#SBATCH --gpus-per-node=4, select=2:ngpus=4); do not forward "
	 "CUDA_VISIBLE_DEVICES between nodes",
	 GH "openpbs/openpbs"},
	{{"Error 802: system not yet initialized"},
	 "the GPUs' fabric manager does not run on this node, or is of another version than the "
	 "driver",
	 "tell the administrators (nvidia-fabricmanager), and leave the node out (--exclude)",
	 GH "pytorch/pytorch/issues/35710"},
	{{"CUDA out of memory"},
	 "the GPU's memory is full",
	 "a smaller batch (and more accumulation), or look whether another process uses the GPU",
	 GH "pytorch/pytorch"},
	{{"unable to open shared memory object", "Too many open files"},
	 "data loader workers share tensors by open files, and the limit on those is reached",
	 "ulimit -n, fewer workers, or torch.multiprocessing.set_sharing_strategy('file_system')",
	 GH "pytorch/pytorch"},
	{{"DataLoader worker", "is killed by signal: Bus error"},
	 "/dev/shm is full or small: a container's has 64 MB",
	 "a larger one (docker --shm-size, apptainer's is the host's), or fewer workers",
	 GH "pytorch/pytorch"},
	{{"Watchdog caught collective operation timeout"},
	 "a collective of NCCL's was not joined by all ranks in time: one is stuck, ended, or "
	 "takes another path through the program",
	 "look for the rank that logged least; berth run --hang-timeout names it, with stacks; "
	 "berth check measures the network",
	 GH "pytorch/pytorch/issues/118369"},
	{{"NCCL WARN socketProgress: Connection closed by remote peer"},
	 "another rank's process ended, or its node is gone: this line is what the others see of "
	 "it",
	 "look at the rank that ended first (berth run names it), not at this one",
	 GH "NVIDIA/nccl/issues/1486"},
	{{"CUDA error: an illegal memory access was encountered"},
	 "a kernel read or wrote outside of its memory; what is on the stack may have come later "
	 "than the fault",
	 "run it once with CUDA_LAUNCH_BLOCKING=1 (berth run --env), or under compute-sanitizer; "
	 "if only one node does so, leave it out",
	 GH "pytorch/pytorch/issues/34220"},
	/* ---- memory, shared memory, files ---- */
	{{"failed to extend /dev/shm/nccl-", "No space left on device"},
	 "/dev/shm is full: a container's 64 MB, or files of killed jobs",
	 "rm /dev/shm/nccl-* of processes that are gone; a larger one for the container; berth "
	 "check looks at it",
	 GH "NVIDIA/nccl/issues/290"},
	{{"[Errno 28] No space left on device"},
	 "a file system is full: where checkpoints go, /tmp or /dev/shm",
	 "df and df -i of the folder in the lines above; keep fewer checkpoints, or name another "
	 "folder (TMPDIR for temporary files)",
	 GH "databrickslabs/dolly/issues/139"},
	{{"[Errno 122] Disk quota exceeded"},
	 "your quota on that file system is used up, though the file system has space",
	 "quota -s, or the site's own tool (lfs quota); keep fewer checkpoints, or write to "
	 "scratch",
	 GH "open-mmlab/mmdetection/issues/12069"},
	{{"No space left on device", "checkpoint"},
	 "the file system of the checkpoints is full: the new one could not be written, those "
	 "before are whole",
	 "df -h of the folder; remove older checkpoints there and give --keep 2, or another folder "
	 "with --ckpt (and the newest with --resume)",
	 "berth-train(1)"},
	{{"Disk quota exceeded", "checkpoint"},
	 "your quota where the checkpoints go is used up: the new one could not be written, those "
	 "before are whole",
	 "quota -s, or the site's own tool (lfs quota); remove older checkpoints and give --keep "
	 "2, or another folder with --ckpt",
	 "berth-train(1)"},
	{{"No space left on device"},
	 "a file system is full",
	 "df -h and df -i of the file or folder in this line; remove what is not needed, or name "
	 "another folder",
	 "errno(3), ENOSPC"},
	{{"oom-kill", "Detected", "event"},
	 "the job used more memory than it asked for, and the kernel ended a process",
	 "ask for more (#SBATCH --mem, select=...:mem=), fewer data loader workers, or fewer ranks "
	 "a node",
	 "slurmstepd"},
	{{"oom_kill", "Detected", "event"},
	 "the job used more memory than it asked for, and the kernel ended a process",
	 "ask for more (#SBATCH --mem, select=...:mem=), fewer data loader workers, or fewer ranks "
	 "a node",
	 "slurmstepd"},
	{{"AF_UNIX path too long"},
	 "TMPDIR is too long for the name of a socket",
	 "TMPDIR=/tmp",
	 "https://docs.alcf.anl.gov/aurora/known-issues/"},
	/* ---- MPI and launchers ---- */
	{{"The application appears to have been direct launched using \"srun\""},
	 "Open MPI was built without the PMI that srun offers here: each process would be a world "
	 "of its own",
	 "berth run -- PROGRAM, which is a PMIx server itself; or srun --mpi=pmix",
	 GH "open-mpi/ompi/issues/10286"},
	{{"ping RPC timeout"},
	 "PALS heard nothing of a node in time",
	 "PALS_PING_PERIOD=240 PALS_RPC_TIMEOUT=240; if it is the same node again, leave it out",
	 "https://docs.alcf.anl.gov/aurora/known-issues/"},
	{{"Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"},
	 "torchrun gives each rank one thread: slow where ranks compute on cores",
	 "set OMP_NUM_THREADS, as berth run does (the cores of the rank)",
	 GH "pytorch/pytorch/blob/main/torch/distributed/run.py"},
	{{"You set `--ntasks="},
	 "Lightning refuses Slurm's --ntasks",
	 "--ntasks-per-node, or berth run -- python train.py in a job with --nodes and "
	 "--gpus-per-node",
	 GH "Lightning-AI/pytorch-lightning"},
	/* ---- ended by the scheduler ---- */
	{{"CANCELLED AT", "DUE TO TIME LIMIT"},
	 "the job's time was over",
	 "more time (#SBATCH --time), or stop in time and go on: berth run --requeue, berth train "
	 "--ckpt",
	 "slurmstepd"},
	{{"CANCELLED AT", "DUE TO PREEMPTION"},
	 "another job with more priority took the nodes",
	 "berth run --requeue, berth train --ckpt",
	 "slurmstepd"},
	{{"CANCELLED AT", "DUE TO NODE FAILURE"},
	 "a node of the job failed",
	 "#SBATCH --no-kill with berth run --max-restarts; or --requeue",
	 "slurmstepd"},
	{{"CANCELLED AT", "DUE TO JOB REQUEUE"},
	 "the job was put back into the queue; tasks that end with code 1 then have no fault",
	 "nothing: it starts again",
	 GH "facebookincubator/submitit/issues/1708"},
	{{"=>> PBS: job killed: walltime"},
	 "the job's time was over",
	 "more time (-l walltime), or stop in time and go on: berth run --requeue, berth train "
	 "--ckpt",
	 "OpenPBS 23.06"},
	{{"=>> PBS: job killed: mem"},
	 "the job used more memory than it asked for",
	 "ask for more (select=...:mem=)",
	 "OpenPBS"},
	{{"Received Signals.SIGTERM death signal"},
	 "torchrun was sent SIGTERM by the scheduler: time over, preempted or cancelled",
	 "berth run --warn-before 120s --warn-signal USR1 gives the program time to save; "
	 "--requeue goes on",
	 GH "pytorch/pytorch"},
};
const size_t explain_row_count = sizeof explain_rows / sizeof *explain_rows;
