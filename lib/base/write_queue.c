/* SPDX-License-Identifier: BSD-3-Clause */
/* The owner appends pieces to a buffer. The thread takes the whole buffer and writes it without the
 * lock, so the owner never waits for a write. */
#include "base/write_queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"

struct piece {
	uint32_t target, size;
};

struct write_queue {
	write_queue_fn *write;
	void *context;
	int event;
	pthread_t thread;
	bool threaded;
	pthread_mutex_t lock;
	pthread_cond_t more, idle;
	struct bytes pieces;
	size_t unwritten;	/* bytes, including those that the thread has taken */
	size_t wanted;		/* raise the event at this number of unwritten bytes */
	bool waits;		/* the owner waits for the event */
	int64_t write_began_ms; /* 0: no write */
	bool end;
};

int write_queue_new(write_queue_fn *write, void *context, struct write_queue **out,
		    struct error *err)
{
	struct write_queue *queue = calloc(1, sizeof *queue);

	if (!queue)
		return error_memory(err, "the output");
	queue->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (queue->event < 0) {
		free(queue);
		return error_set(err, ERR_UNAVAILABLE, "eventfd: %s", strerror(errno));
	}
	queue->write = write;
	queue->context = context;
	pthread_mutex_init(&queue->lock, NULL);
	clock_cond_init(&queue->more);
	clock_cond_init(&queue->idle);
	*out = queue;
	return 0;
}

/* Write the pieces without the lock. */
static void write_pieces(struct write_queue *queue, const struct bytes *pieces)
{
	const unsigned char *at = pieces->data, *end = at + pieces->size;
	const uint64_t one = 1;
	struct piece piece;

	for (; at < end; at += sizeof piece + piece.size) {
		/* The pieces are not aligned. */
		memcpy(&piece, at, sizeof piece);
		pthread_mutex_lock(&queue->lock);
		queue->write_began_ms = clock_now_ms();
		pthread_mutex_unlock(&queue->lock);
		queue->write(queue->context, piece.target, at + sizeof piece, piece.size);
		pthread_mutex_lock(&queue->lock);
		queue->write_began_ms = 0;
		queue->unwritten -= piece.size;
		if (queue->waits && queue->unwritten <= queue->wanted &&
		    write(queue->event, &one, sizeof one) == sizeof one)
			queue->waits = false;
		pthread_mutex_unlock(&queue->lock);
	}
}

/* Write all pieces so far. Releases the caller's lock while it writes. */
static void write_waiting(struct write_queue *queue)
{
	struct bytes pieces = queue->pieces;

	memset(&queue->pieces, 0, sizeof queue->pieces);
	pthread_mutex_unlock(&queue->lock);
	write_pieces(queue, &pieces);
	bytes_free(&pieces);
	pthread_mutex_lock(&queue->lock);
}

static void *run_queue(void *context)
{
	struct write_queue *queue = context;

	pthread_mutex_lock(&queue->lock);
	for (;;) {
		while (!queue->pieces.size && !queue->end)
			pthread_cond_wait(&queue->more, &queue->lock);
		if (!queue->pieces.size)
			break;
		write_waiting(queue);
		if (!queue->unwritten)
			pthread_cond_broadcast(&queue->idle);
	}
	pthread_mutex_unlock(&queue->lock);
	return NULL;
}

bool write_queue_add(struct write_queue *queue, unsigned target, const struct iovec *parts,
		     size_t count)
{
	struct piece piece = {.target = target};
	unsigned char *at;

	for (size_t i = 0; i < count; i++)
		piece.size += (uint32_t)parts[i].iov_len;
	pthread_mutex_lock(&queue->lock);
	if (!queue->threaded)
		queue->threaded = !thread_start(&queue->thread, run_queue, queue);
	at = bytes_extend(&queue->pieces, sizeof piece + piece.size);
	if (at) {
		memcpy(at, &piece, sizeof piece);
		at += sizeof piece;
		for (size_t i = 0; i < count; i++) {
			if (parts[i].iov_len)
				memcpy(at, parts[i].iov_base, parts[i].iov_len);
			at += parts[i].iov_len;
		}
		queue->unwritten += piece.size;
	}
	pthread_cond_signal(&queue->more);
	if (!queue->threaded) /* no thread can be had: write here, however long it takes */
		write_waiting(queue);
	pthread_mutex_unlock(&queue->lock);
	return at;
}

size_t write_queue_size(struct write_queue *queue)
{
	size_t size;

	pthread_mutex_lock(&queue->lock);
	size = queue->unwritten;
	pthread_mutex_unlock(&queue->lock);
	return size;
}

bool write_queue_over(struct write_queue *queue, size_t size)
{
	uint64_t count;
	bool over;

	/* Before the number is looked at: an event that is raised after that must stay. */
	if (read(queue->event, &count, sizeof count) < 0)
		count = 0; /* nothing to read away */
	pthread_mutex_lock(&queue->lock);
	over = queue->unwritten > size;
	queue->waits = over;
	queue->wanted = size / 2;
	pthread_mutex_unlock(&queue->lock);
	return over;
}

int write_queue_fd(const struct write_queue *queue)
{
	return queue->event;
}

int64_t write_queue_stalled_ms(struct write_queue *queue)
{
	int64_t began_ms;

	pthread_mutex_lock(&queue->lock);
	began_ms = queue->write_began_ms;
	pthread_mutex_unlock(&queue->lock);
	return began_ms ? clock_now_ms() - began_ms : 0;
}

bool write_queue_wait(struct write_queue *queue, int timeout_ms)
{
	struct timespec until = clock_after_ms(timeout_ms);
	bool done;
	int rc = 0;

	pthread_mutex_lock(&queue->lock);
	while (queue->unwritten && !rc)
		rc = pthread_cond_timedwait(&queue->idle, &queue->lock, &until);
	done = !queue->unwritten;
	pthread_mutex_unlock(&queue->lock);
	return done;
}

bool write_queue_free(struct write_queue *queue, int timeout_ms)
{
	if (!queue)
		return true;
	if (!write_queue_wait(queue, timeout_ms))
		return false;
	pthread_mutex_lock(&queue->lock);
	queue->end = true;
	pthread_cond_signal(&queue->more);
	pthread_mutex_unlock(&queue->lock);
	if (queue->threaded)
		pthread_join(queue->thread, NULL);
	bytes_free(&queue->pieces);
	close(queue->event);
	pthread_cond_destroy(&queue->more);
	pthread_cond_destroy(&queue->idle);
	pthread_mutex_destroy(&queue->lock);
	free(queue);
	return true;
}
