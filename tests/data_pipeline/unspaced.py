"""Text of languages that have no spaces between words, made of their words."""

import random

WORDS = {
    "Thai": "ฉัน คุณ เขา เรา แม่น้ำ ภูเขา โรงเรียน หนังสือ ตลาด เมือง ประเทศ รัฐบาล อาหาร "
    "เดินทาง ทำงาน เขียน อ่าน สำหรับ ระหว่าง และ ที่ ของ เป็น ไม่ ได้",
    "Lao": "ຂ້ອຍ ເຈົ້າ ລາວ ພວກເຮົາ ແມ່ນ້ຳ ພູເຂົາ ໂຮງຮຽນ ປຶ້ມ ຕະຫຼາດ ເມືອງ ປະເທດ ລັດຖະບານ ອາຫານ "
    "ເດີນທາງ ເຮັດວຽກ ຂຽນ ອ່ານ ສຳລັບ ລະຫວ່າງ ແລະ ທີ່ ຂອງ ເປັນ ບໍ່ ໄດ້",
    "Khmer": "ខ្ញុំ អ្នក គាត់ យើង ទន្លេ ភ្នំ សាលារៀន សៀវភៅ ផ្សារ ទីក្រុង ប្រទេស រដ្ឋាភិបាល អាហារ "
    "ធ្វើដំណើរ ធ្វើការ សរសេរ អាន សម្រាប់ រវាង និង ដែល របស់ ជា មិន បាន",
    "Burmese": "ကျွန်တော် ခင်ဗျား သူ ကျွန်ုပ်တို့ မြစ် တောင် ကျောင်း စာအုပ် ဈေး မြို့ နိုင်ငံ အစိုးရ အစားအစာ "
    "ခရီးသွား အလုပ် ရေး ဖတ် အတွက် အကြား နှင့် သော ၏ ဖြစ် မ ရ",
}


def sentence(language: str, number: int) -> str:
    """A sentence of 14 words, the same on every machine."""
    return "".join(random.Random(number).choices(WORDS[language].split(), k=14))


def page(language: str, *numbers: int) -> str:
    """Paragraphs of five sentences, with a space after each paragraph only."""
    sentences = [sentence(language, number) for number in numbers]
    return " ".join("".join(sentences[at : at + 5]) for at in range(0, len(sentences), 5))
