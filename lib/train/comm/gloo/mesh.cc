/* SPDX-License-Identifier: BSD-3-Clause */
/* The only C++ of berth, because gloo has no other interface. */
#include <cstdlib>
#include <cstring>
#include <exception>
#include <link.h>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <sys/random.h>
#include <unistd.h>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/context.h>
#include <gloo/math.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

extern "C" {
#include "train/comm/gloo/mesh.h"
}

namespace transport = gloo::transport;
using milliseconds = std::chrono::milliseconds;

namespace
{

constexpr uint64_t WORD_SLOT = 0x626572; /* no collective of gloo has it: theirs are above 2^56 */

/* A message of the ring. With gloo's own 1 MB, a step of ResNet-18 on two nodes takes 2 % longer.
 */
constexpr size_t SEGMENT_BYTES = 4 << 20;

/* gloo's context with connections that were made here. */
class Connected : public gloo::Context
{
      public:
	Connected(std::shared_ptr<transport::Device> device,
		  std::shared_ptr<transport::Context> pairs)
	    : gloo::Context(pairs->rank, pairs->size)
	{
		device_ = std::move(device);
		transportContext_ = std::move(pairs);
	}
};

/* gloo's messages begin with a place in its source: "[/build/gloo/transport/tcp/pair.cc:598] ". */
const char *without_place(const char *text)
{
	const char *end = *text == '[' ? strstr(text, "] ") : nullptr;

	return end && memchr(text, ':', (size_t)(end - text)) ? end + 2 : text;
}

struct Impostor : std::runtime_error {
	using std::runtime_error::runtime_error;
};

template <typename Call> int guarded(struct error *err, Call call)
{
	try {
		call();
		return 0;
	} catch (const std::bad_alloc &) {
		return error_memory(err, "gloo");
	} catch (const Impostor &why) {
		return error_set(err, ERR_DATA, "%s", why.what());
	} catch (const std::exception &why) {
		return error_set(err, ERR_NETWORK, "%s", without_place(why.what()));
	}
}

} // namespace

struct gloo_mesh {
	int rank, size;
	std::shared_ptr<transport::Device> device;
	std::shared_ptr<transport::Context> pairs; /* of the newest try */
	std::shared_ptr<gloo::Context> context;	   /* once they are connected */
};

/* What somebody else sends to one of gloo's ports can make its thread throw. */
static void end_with_message()
{
	char text[512] = "";

	try {
		if (std::current_exception())
			std::rethrow_exception(std::current_exception());
	} catch (const std::exception &why) {
		snprintf(text, sizeof text, "%s", without_place(why.what()));
	} catch (...) {
	}
	dprintf(STDERR_FILENO,
		"berth-train: error: gloo failed in its own thread: %s. Another program may have "
		"connected to one of this job's ports\n",
		text);
	_exit(ERR_NETWORK);
}

int gloo_mesh_new(int rank, int size, const char *interface, const char *address,
		  struct gloo_mesh **out, struct error *err)
{
	std::set_terminate(end_with_message);
	return guarded(err, [&] {
		transport::tcp::attr attr(address);

		attr.iface = interface;

		auto mesh = std::make_unique<gloo_mesh>();

		mesh->rank = rank;
		mesh->size = size;
		mesh->device = transport::tcp::CreateDevice(attr);
		*out = mesh.release();
	});
}

void gloo_mesh_free(struct gloo_mesh *mesh)
{
	guarded(nullptr, [&] { delete mesh; });
}

int gloo_mesh_listen(struct gloo_mesh *mesh, int timeout_ms, struct mesh_contact *contacts,
		     struct error *err)
{
	return guarded(err, [&] {
		mesh->pairs.reset();
		mesh->pairs = mesh->device->createContext(mesh->rank, mesh->size);
		mesh->pairs->setTimeout(milliseconds(timeout_ms));
		for (int peer = 0; peer < mesh->size; peer++) {
			struct mesh_contact *to = &contacts[peer];

			if (peer == mesh->rank)
				continue;
			auto address = mesh->pairs->createPair(peer)->address().bytes();

			if (address.size() > sizeof to->address)
				throw std::runtime_error("an address of gloo has " +
							 std::to_string(address.size()) + " bytes");
			memcpy(to->address, address.data(), address.size());
			if (getrandom(to->word, sizeof to->word, 0) != sizeof to->word)
				throw std::runtime_error("no random numbers");
		}
	});
}

static void connect_pairs(struct gloo_mesh *mesh, const struct mesh_contact *contacts, int *peer)
{
	for (*peer = 0; *peer < mesh->size; ++*peer) {
		if (*peer == mesh->rank)
			continue;
		auto &pair = mesh->pairs->getPair(*peer);
		size_t bytes = pair->address().bytes().size();
		const char *address = contacts[*peer * mesh->size + mesh->rank].address;

		pair->connect(std::vector<char>(address, address + bytes));
	}
}

static void check_words(struct gloo_mesh *mesh, int timeout_ms, const struct mesh_contact *contacts,
			int *peer)
{
	std::vector<unsigned char> heard(mesh->size * MESH_WORD_BYTES);
	std::vector<std::unique_ptr<transport::UnboundBuffer>> in(mesh->size), out(mesh->size);

	for (*peer = 0; *peer < mesh->size; ++*peer) {
		const unsigned char *word = contacts[mesh->rank * mesh->size + *peer].word;

		if (*peer == mesh->rank)
			continue;
		in[*peer] = mesh->pairs->createUnboundBuffer(&heard[*peer * MESH_WORD_BYTES],
							     MESH_WORD_BYTES);
		out[*peer] = mesh->pairs->createUnboundBuffer(const_cast<unsigned char *>(word),
							      MESH_WORD_BYTES);
		in[*peer]->recv(*peer, WORD_SLOT);
		out[*peer]->send(*peer, WORD_SLOT);
	}
	for (*peer = 0; *peer < mesh->size; ++*peer) {
		if (*peer == mesh->rank)
			continue;
		in[*peer]->waitRecv(milliseconds(timeout_ms));
		if (memcmp(&heard[*peer * MESH_WORD_BYTES],
			   contacts[*peer * mesh->size + mesh->rank].word, MESH_WORD_BYTES))
			throw Impostor("a program that does not belong to this job has connected "
				       "in its place");
	}
	for (*peer = 0; *peer < mesh->size; ++*peer)
		if (*peer != mesh->rank)
			out[*peer]->waitSend(milliseconds(timeout_ms));
}

int gloo_mesh_connect(struct gloo_mesh *mesh, int timeout_ms, const struct mesh_contact *contacts,
		      struct error *err)
{
	int peer = -1;
	int rc = guarded(err, [&] {
		connect_pairs(mesh, contacts, &peer);
		check_words(mesh, timeout_ms, contacts, &peer);
		mesh->context = std::make_shared<Connected>(mesh->device, mesh->pairs);
	});

	return rc && peer >= 0 ? error_prefix(err, "connecting to rank %d", peer) : rc;
}

void gloo_mesh_reset(struct gloo_mesh *mesh)
{
	guarded(nullptr, [&] { mesh->context->closeConnections(); });
}

template <typename T>
static void set_reduce(gloo::AllreduceOptions &options, void *data, size_t count,
		       enum comm_reduce reduce)
{
	static void (*const functions[])(void *, const void *, const void *,
					 size_t) = {gloo::sum<T>, gloo::min<T>, gloo::max<T>};

	options.setOutput(static_cast<T *>(data), count);
	options.setReduceFunction(functions[reduce]);
}

static void all_reduce(std::shared_ptr<gloo::Context> context, const struct mesh_job *job,
		       milliseconds timeout)
{
	gloo::AllreduceOptions options(context);

	switch (job->type) {
	case ELEMENT_F32:
		set_reduce<float>(options, job->data, job->count, job->reduce);
		break;
	case ELEMENT_F64:
		set_reduce<double>(options, job->data, job->count, job->reduce);
		break;
	case ELEMENT_I32:
		set_reduce<int32_t>(options, job->data, job->count, job->reduce);
		break;
	case ELEMENT_I64:
		set_reduce<int64_t>(options, job->data, job->count, job->reduce);
		break;
	}
	options.setTimeout(timeout);
	options.setMaxSegmentSize(SEGMENT_BYTES);
	gloo::allreduce(options);
}

int gloo_mesh_run(struct gloo_mesh *mesh, const struct mesh_job *job, int timeout_ms,
		  struct error *err)
{
	const milliseconds timeout(timeout_ms);
	char *data = static_cast<char *>(job->data);

	return guarded(err, [&] {
		gloo::BroadcastOptions broadcast(mesh->context);
		gloo::AllgatherOptions gather(mesh->context);
		gloo::BarrierOptions barrier(mesh->context);

		switch (job->kind) {
		case MESH_ALL_REDUCE:
			all_reduce(mesh->context, job, timeout);
			break;
		case MESH_BROADCAST:
			broadcast.setOutput(data, job->count);
			broadcast.setRoot(job->root);
			broadcast.setTimeout(timeout);
			gloo::broadcast(broadcast);
			break;
		case MESH_ALL_GATHER:
			gather.setInput(static_cast<char *>(const_cast<void *>(job->from)),
					job->count);
			gather.setOutput(data, job->count * mesh->size);
			gather.setTimeout(timeout);
			gloo::allgather(gather);
			break;
		case MESH_BARRIER:
			barrier.setTimeout(timeout);
			gloo::barrier(barrier);
			break;
		}
	});
}

/* The linker's build ID is in a note, which is mapped. */
static int read_build(struct dl_phdr_info *info, size_t, void *context)
{
	char *text = static_cast<char *>(context);

	if (!strstr(info->dlpi_name, "libgloo"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		const char *at = reinterpret_cast<const char *>(info->dlpi_addr + part->p_vaddr);
		const char *end = at + part->p_memsz;

		while (part->p_type == PT_NOTE && end - at > (ptrdiff_t)sizeof(ElfW(Nhdr))) {
			const auto *note = reinterpret_cast<const ElfW(Nhdr) *>(at);
			const char *name = at + sizeof *note;
			const char *data = name + ((note->n_namesz + 3) & ~3u);

			if (note->n_type == NT_GNU_BUILD_ID && !strcmp(name, "GNU"))
				for (unsigned k = 0; k < note->n_descsz && k < 20; k++)
					sprintf(text + 2 * k, "%02x", (unsigned char)data[k]);
			at = data + ((note->n_descsz + 3) & ~3u);
		}
	}
	return 1;
}

void gloo_mesh_build(char text[48])
{
	*text = 0;
	dl_iterate_phdr(read_build, text);
}
