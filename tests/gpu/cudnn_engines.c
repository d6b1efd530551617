/* SPDX-License-Identifier: BSD-3-Clause */
/* Which engines of cuDNN's graph API the trainer may use for ResNet-50's convolutions on this GPU,
 * through its own engine.c. For each pass: how many the heuristics list, how many can be built, and
 * the time of the fastest. "sums" is the convolution with GEN_STATS, which computes a batch norm's
 * sums; "norm" includes a batch norm and its ReLU (engine.h). cudnn_engines [BATCH [SHAPES
 * [DESCRIPTION]]]: 256, all Prints one JSON object per line. Exits with code 77 without a GPU, and
 * with 1 if no engine could be built.
 *
 * DESCRIPTION: a file that describes a GPU to cuDNN (9.11 and later), such as described/h200.json.
 * It then shows what could be built there, without a GPU and without times, and exits with code 1
 * if a pass that this cuDNN supports on that GPU (always below) could not be built. */
#include <stdio.h>
#include <stdlib.h>

#include "train/device/cuda/cuda.h"
#include "train/device/cuda/engine.h"

#define RUNS 10
#define WORKSPACE ((size_t)1 << 30)

extern const struct device_ops device_cuda;

/* c, side, outputs, kernel, stride; small shapes first. */
static const int shapes[][5] = {
	{64, 7, 64, 3, 1},     {512, 7, 512, 3, 1},    {512, 7, 2048, 1, 1},  {2048, 7, 512, 1, 1},
	{512, 14, 512, 3, 2},  {1024, 14, 2048, 1, 2}, {256, 14, 256, 3, 1},  {256, 14, 1024, 1, 1},
	{1024, 14, 256, 1, 1}, {256, 28, 256, 3, 2},   {512, 28, 1024, 1, 2}, {128, 28, 128, 3, 1},
	{128, 28, 512, 1, 1},  {512, 28, 128, 1, 1},   {128, 56, 128, 3, 2},  {256, 56, 512, 1, 2},
	{64, 56, 64, 3, 1},    {64, 56, 256, 1, 1},    {256, 56, 64, 1, 1},   {64, 56, 64, 1, 1},
	{4, 224, 64, 7, 2},
};

/* always: cuDNN 9.19 has kernels of this pass for sm_80 and sm_90; fp16: only in that type. In
 * bf16, "sums" and "norm-sums" are compiled when they are built, which requires a driver. */
static const struct {
	enum engine_pass pass;
	const char *name;
	bool fp16;
} passes[] = {{ENGINE_FORWARD, "forward", false},	  {ENGINE_SUMS, "sums", true},
	      {ENGINE_NORM_SUMS, "norm-sums", true},	  {ENGINE_INPUT, "input", false},
	      {ENGINE_INPUT_NORM, "input-norm", true},	  {ENGINE_WEIGHTS, "weights", false},
	      {ENGINE_NORM_WEIGHTS, "norm-weights", true}};

struct room {
	struct cuda *cuda;
	cudaStream_t stream;
	cudaEvent_t begin, end;
	struct engine_call call;
	void *memory[7];
};

/* NaNs would change the times. */
static bool take(struct room *room, int at, size_t bytes, bool numbers, enum number number)
{
	const struct kernel_config config = {room->stream, number, room->cuda->multiprocessors};

	if (cudaMalloc(&room->memory[at], bytes))
		return false;
	if (numbers)
		kernel_fill(&config, room->memory[at], bytes / number_size(number), (unsigned)at);
	return !cudaGetLastError();
}

static bool room_take(struct room *room, const struct conv_shape *s, enum number number)
{
	struct op_attributes window = {s->kernel, s->stride, s->pad};
	size_t size = number_size(number), n = (size_t)s->n, c = (size_t)s->c;
	size_t side = (size_t)s->h, out = (size_t)op_side(s->h, &window), k = (size_t)s->outputs;
	size_t most = k > c ? k : c;
	bool good = take(room, 0, n * side * side * c * size, true, number) &&
		    take(room, 1, k * (size_t)(s->kernel * s->kernel) * c * size, true, number) &&
		    take(room, 2, n * out * out * k * size, true, number) &&
		    take(room, 3, 2 * most * sizeof(float), false, number) &&
		    take(room, 4, WORKSPACE, false, number) &&
		    take(room, 5, n * side * side * c * size, true, number) &&
		    take(room, 6, 9 * c * sizeof(float), true, NUMBER_F32);
	float *rows = room->memory[6];

	room->call = (struct engine_call){
		.x = room->memory[0],
		.w = room->memory[1],
		.y = room->memory[2],
		.sums = room->memory[3],
		.workspace = room->memory[4],
		.norm_x = room->memory[5],
		/* Any numbers will do; these bytes are valid in both types. */
		.scale = room->memory[1],
		.shift = room->memory[1],
		.norm = {rows, rows + c, rows + 2 * c, rows + 3 * c},
		.rest = rows + 4 * c,
	};
	return good;
}

static void room_leave(struct room *room)
{
	cudaStreamSynchronize(room->stream);
	for (int i = 0; i < 7; i++) {
		cudaFree(room->memory[i]);
		room->memory[i] = NULL;
	}
}

static float time_of(struct room *room, struct engines *engines, int index)
{
	float ms = -1;

	if (engines_run(engines, index, room->stream, &room->call, "probe", NULL) ||
	    cudaEventRecord(room->begin, room->stream))
		return -1;
	for (int i = 0; i < RUNS; i++)
		if (engines_run(engines, index, room->stream, &room->call, "probe", NULL))
			return -1;
	if (cudaEventRecord(room->end, room->stream) || cudaEventSynchronize(room->end) ||
	    cudaEventElapsedTime(&ms, room->begin, room->end))
		return -1;
	return ms / RUNS;
}

/* How many could be built. */
static int probe(struct room *room, const struct conv_shape *s, enum number number, int pass)
{
	const struct layer_rules rules = {.number = number, .train = true, .dx = true};
	struct engines *engines = engines_new(room->cuda, passes[pass].pass, s, &rules, false);
	int made = 0, best_name = -1;
	float best = -1;

	for (int i = 0; i < engines_count(engines); i++) {
		if (!engines_build(engines, i, WORKSPACE))
			continue;
		made++;

		float ms = room->cuda->described_device ? -1 : time_of(room, engines, i);

		if (ms >= 0 && (best < 0 || ms < best)) {
			best = ms;
			best_name = engines_global_index(engines, i);
		}
		if (!room->cuda->described_device)
			cudaStreamSynchronize(room->stream);
		engines_drop(engines, i);
	}
	printf("{\"conv\": \"%d->%d %dx%d/%d %d\", \"batch\": %d, \"type\": \"%s\", \"pass\": "
	       "\"%s\", "
	       "\"named\": %d, \"made\": %d, \"fastest\": %d, \"ms\": %.4f}\n",
	       s->c, s->outputs, s->kernel, s->kernel, s->stride, s->h, s->n,
	       number == NUMBER_F16 ? "fp16" : "bf16", passes[pass].name, engines_count(engines),
	       made, best_name, (double)best);
	engines_free(engines);
	return made;
}

static struct conv_shape shape_of(const int *s, int batch)
{
	return (struct conv_shape){batch, s[0], s[1], s[1], s[2], s[3], s[4], s[3] / 2};
}

static const enum number numbers[] = {NUMBER_F16, NUMBER_BF16};

/* ---- a GPU that is described ---- */

static cudnnBackendDescriptor_t described_by(const char *path)
{
	char text[4096];
	FILE *file = fopen(path, "r");
	size_t length = file ? fread(text, 1, sizeof text, file) : 0;
	cudnnBackendDescriptor_t it = NULL;

	if (file)
		fclose(file);
#if CUDNN_VERSION >= 91100
	if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &it) ||
	    cudnnBackendSetAttribute(it, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
				     (int64_t)length, text) ||
	    cudnnBackendFinalize(it))
		return NULL;
#endif
	return length ? it : NULL;
}

static int without_gpu(const char *path, int batch, size_t count)
{
	struct cuda cuda = {.major = 9, .described_device = described_by(path)};
	struct room room = {.cuda = &cuda};
	int missing = 0;

	if (!cuda.described_device) {
		char why[512] = "";

		cudnnGetLastErrorString(why, sizeof why);
		printf("skipped: cuDNN %zu does not accept %s: %s\n", cudnnGetVersion(), path, why);
		return 77;
	}
	for (size_t i = 0; i < count; i++)
		for (int type = 0; type < 2; type++)
			for (size_t pass = 0; pass < sizeof passes / sizeof *passes; pass++) {
				const struct conv_shape shape = shape_of(shapes[i], batch);
				bool needed = shape.c % 8 == 0 &&
					      (!passes[pass].fp16 || numbers[type] == NUMBER_F16);

				if (!probe(&room, &shape, numbers[type], (int)pass) && needed)
					missing++;
			}
	cudnnBackendDestroyDescriptor(cuda.described_device);
	return missing ? 1 : 0;
}

/* ---- this GPU ---- */

static int on_gpu(int batch, size_t count)
{
	struct device *device;
	struct room room = {0};
	struct error err = {0};
	int made = 0;

	if (device_cuda.open(0, &device, &err)) {
		printf("skipped: %s\n", err.text);
		return 77;
	}
	room.cuda = (struct cuda *)device;
	if (cudaStreamCreateWithFlags(&room.stream, cudaStreamNonBlocking) ||
	    cudaEventCreateWithFlags(&room.begin, cudaEventDefault) ||
	    cudaEventCreateWithFlags(&room.end, cudaEventDefault))
		return 1;
	for (size_t i = 0; i < count; i++)
		for (int type = 0; type < 2; type++) {
			const struct conv_shape shape = shape_of(shapes[i], batch);

			if (room_take(&room, &shape, numbers[type]))
				for (size_t pass = 0; pass < sizeof passes / sizeof *passes; pass++)
					made += probe(&room, &shape, numbers[type], (int)pass);
			else
				fprintf(stderr, "out of memory for shape %zu\n", i);
			room_leave(&room);
		}
	cudaEventDestroy(room.begin);
	cudaEventDestroy(room.end);
	cudnnSetStream(room.cuda->cudnn, NULL);
	cudaStreamDestroy(room.stream);
	device->ops->close(device);
	return made ? 0 : 1;
}

int main(int argc, char **argv)
{
	int batch = argc > 1 ? atoi(argv[1]) : 256;
	size_t count = sizeof shapes / sizeof *shapes;

	if (argc > 2 && (size_t)atoi(argv[2]) < count)
		count = (size_t)atoi(argv[2]);
	return argc > 3 ? without_gpu(argv[3], batch, count) : on_gpu(batch, count);
}
