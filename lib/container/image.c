/* SPDX-License-Identifier: BSD-3-Clause */
/* What the first bytes of an image tell: a copy that was cut off, or one for another machine, would
 * fail on each rank with a message about mounts.
 *
 * Layout of SIF: github.com/apptainer/sif, pkg/sif/sif.go and descriptor.go: a header of 128 bytes,
 * then descriptors of 585 bytes; numbers are little-endian. Of squashfs: the kernel's
 * fs/squashfs/squashfs_fs.h, struct squashfs_super_block. */
#include "container/container_internal.h"

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

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
