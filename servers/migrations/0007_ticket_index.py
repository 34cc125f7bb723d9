import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('servers', '0006_check_record'),
    ]

    operations = [
        migrations.AlterField(
            model_name='callticket',
            name='server',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='servers.server'),
        ),
    ]
