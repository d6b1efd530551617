/* SPDX-License-Identifier: BSD-3-Clause */
/* What the first bytes of an image tell: a copy that was cut off, or one for another machine, would
 * fail on each rank with a message about mounts.
 *
 * Layout of SIF: github.com/apptainer/sif, pkg/sif/sif.go and descriptor.go: a header of 128 bytes,
 * then descriptors of 585 bytes; numbers are little-endian. Of squashfs: the kernel's
 * fs/squashfs/squashfs_fs.h, struct squashfs_super_block. */
#include "container/container_internal.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"

#define HEAD_BYTES (1 << 20) /* of a SIF: before its file system, what apptainer inspect shows */
#define SIF_HEADER 128
#define SIF_DESCRIPTOR 585
#define SIF_DESCRIPTORS_MAX 1024

static uint64_t number(const unsigned char *at)
{
	uint64_t value = 0;

	for (int i = 7; i >= 0; i--)
		value = value << 8 | at[i];
	return value;
}

/* The machine, as uname writes it, of an architecture's code in a SIF header; NULL: another one. */
static const char *sif_machine(const unsigned char *code)
{
	static const char *const machines[] = {
		[2] = "x86_64", [4] = "aarch64", [6] = "ppc64le", [11] = "s390x", [12] = "riscv64"};
	size_t index = (size_t)(code[0] - '0') * 10 + (size_t)(code[1] - '0');

	return index < sizeof machines / sizeof *machines ? machines[index] : NULL;
}

/* The end of the last object in the file, from the descriptors; 0: they cannot be read. */
static uint64_t sif_end(int fd, const unsigned char *header)
{
	uint64_t count = number(header + 88), at = number(header + 96), end = 0;
	unsigned char entry[SIF_DESCRIPTOR];

	if (count > SIF_DESCRIPTORS_MAX || at > INT64_MAX / 2)
		return 0;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t last;

		if (pread(fd, entry, sizeof entry, (off_t)(at + i * sizeof entry)) != sizeof entry)
			return 0;
		last = number(entry + 17) + number(entry + 25);
		if (entry[4] && last > end) /* entry[4]: in use */
			end = last;
	}
	return end;
}

static bool is_sif(const unsigned char *header)
{
	return !memcmp(header + 32, "SIF_MAGIC", 10);
}

bool container_is_sif(const char *image)
{
	unsigned char header[SIF_HEADER] = {0};
	int fd = open(image, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	bool sif = fd >= 0 && pread(fd, header, sizeof header, 0) > 0 && is_sif(header);

	if (fd >= 0)
		close(fd);
	return sif;
}

static int check_file(int fd, const char *image, uint64_t size, struct error *err)
{
	unsigned char header[SIF_HEADER] = {0};
	struct utsname host;
	const char *machine;
	uint64_t end = size;

	if (pread(fd, header, sizeof header, 0) < 0)
		return error_set(err, ERR_INPUT, "--container: cannot read '%s': %m", image);
	if (!memcmp(header, "hsqs", 4)) {
		end = number(header + 40);
	} else if (is_sif(header)) {
		machine = sif_machine(header + 45);
		if (machine && !uname(&host) && strcmp(machine, host.machine) != 0)
			return error_set(
				err, ERR_DATA,
				"--container: '%s' is for %s, and this machine is %s. Build "
				"or pull the image for %s.",
				image, machine, host.machine, host.machine);
		end = sif_end(fd, header);
	}
	if (size < SIF_HEADER || !end || end > size)
		return error_set(err, ERR_DATA,
				 "--container: '%s' is not complete: it has %llu bytes%s. Copy or "
				 "pull it again.",
				 image, (unsigned long long)size,
				 end > size ? ", fewer than its header names" : "");
	return 0;
}

int container_check_image(const char *image, bool *directory, struct error *err)
{
	struct stat info;
	int fd, rc;

	*directory = false;
	fd = open(image, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &info)) {
		rc = error_set(err, ERR_INPUT, "--container: cannot read '%s': %m", image);
	} else if ((*directory = S_ISDIR(info.st_mode))) {
		rc = faccessat(fd, "bin/sh", F_OK, AT_SYMLINK_NOFOLLOW)
			     ? error_set(err, ERR_DATA,
					 "--container: the directory '%s' is not an image: it has "
					 "no bin/sh",
					 image)
			     : 0;
	} else {
		rc = check_file(fd, image, (uint64_t)info.st_size, err);
	}
	if (fd >= 0)
		close(fd);
	return rc;
}

/* ---- CUDA ---- */

int container_cuda_of_driver(const char *driver)
{
	/* The oldest driver of each, from the release notes of CUDA 13.0. */
	static const struct {
		int cuda, driver, minor;
	} rows[] = {{13, 580, 65}, {12, 525, 60}, {11, 450, 80}, {10, 0, 0}};
	int major, minor;
	size_t i = 0;

	if (sscanf(driver, "%d.%d", &major, &minor) != 2)
		return 0;
	while (major < rows[i].driver || (major == rows[i].driver && minor < rows[i].minor))
		i++;
	return rows[i].cuda;
}

/* The value that a line of a shell or of /ch/environment gives to CUDA_VERSION; 0: none. */
static int cuda_in(const char *text)
{
	static const char name[] = "CUDA_VERSION=";

	for (const char *at = text; (at = strstr(at, name)); at++) {
		const char *value = at + strlen(name);

		/* In JSON, quotes and the line's end are two characters. */
		while (*value && *value != '\n' && strncmp(value, "\\n", 2) != 0 &&
		       !isdigit((unsigned char)*value))
			value++;
		if ((at == text || !(isalnum((unsigned char)at[-1]) || at[-1] == '_')) &&
		    isdigit((unsigned char)*value))
			return (int)strtol(value, NULL, 10);
	}
	return 0;
}

static int cuda_of_sif(const char *image)
{
	char *text = calloc(1, HEAD_BYTES + 1);
	int fd = open(image, O_RDONLY | O_CLOEXEC), cuda = 0;
	ssize_t size = text && fd >= 0 ? pread(fd, text, HEAD_BYTES, 0) : 0;

	for (ssize_t i = 0; i < size; i++)
		if (!text[i])
			text[i] = ' ';
	if (size > 0)
		cuda = cuda_in(text);
	if (fd >= 0)
		close(fd);
	free(text);
	return cuda;
}

int container_cuda_of_image(const char *image, bool *compat)
{
	static const char *const files[] = {".singularity.d/env/10-docker2singularity.sh",
					    "ch/environment"};
	char path[4096], *text;
	size_t size;
	int cuda = 0;

	/* What is in a file system of a SIF is not seen: NVIDIA's images have it. */
	snprintf(path, sizeof path, "%s/usr/local/cuda/compat/libcuda.so.1", image);
	*compat = container_is_sif(image) || !access(path, F_OK);
	if (container_is_sif(image))
		return cuda_of_sif(image);
	for (size_t i = 0; !cuda && i < sizeof files / sizeof *files; i++) {
		snprintf(path, sizeof path, "%s/%s", image, files[i]);
		if (file_read(path, HEAD_BYTES, &text, &size, NULL))
			continue;
		cuda = cuda_in(text);
		free(text);
	}
	return cuda;
}
